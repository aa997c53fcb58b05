{{/*
Where credentials come from. Each helper gives the name of a Secret; none gives a value. Invariant:
only a Secret that exists before the release, or is the chart's own, is ever named.
*/}}

{{- define "tenfold.ownSecret" -}}
{{- printf "%s-generated" (include "tenfold.fullname" .) -}}
{{- end -}}

{{- define "tenfold.externalSecret" -}}
{{- printf "%s-external" (include "tenfold.fullname" .) -}}
{{- end -}}

{{/* Takes root, own (whether the chart makes one where none is given), existing, what. */}}
{{- define "tenfold.secretName" -}}
{{- if .existing -}}
{{- .existing -}}
{{- else if .root.Values.externalSecrets.enabled -}}
{{- include "tenfold.externalSecret" .root -}}
{{- else if .own -}}
{{- include "tenfold.ownSecret" .root -}}
{{- else -}}
{{- fail (printf "%s.existingSecret is required: name a Secret that holds it" .what) -}}
{{- end -}}
{{- end -}}

{{- define "tenfold.adminKeyRef" -}}
name: {{ include "tenfold.secretName" (dict "root" . "own" true "existing" .Values.adminKey.existingSecret "what" "adminKey") }}
key: {{ .Values.adminKey.key }}
{{- end -}}

{{- define "tenfold.keyPepperRef" -}}
name: {{ include "tenfold.secretName" (dict "root" . "own" true "existing" .Values.keyPepper.existingSecret "what" "keyPepper") }}
key: {{ .Values.keyPepper.key }}
{{- end -}}

{{- define "tenfold.queueSecretEnv" -}}
- name: TENFOLD_QUEUE_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ include "tenfold.secretName" (dict "root" . "own" true "existing" .Values.queueSecret.existingSecret "what" "queueSecret") }}
      key: {{ .Values.queueSecret.key }}
{{- end -}}

{{/* Where tenants' files lie, and what they are sealed with. */}}
{{- define "tenfold.filesEnv" -}}
- {name: TENFOLD_FILE_STORE, value: /adapters/.files}
- name: TENFOLD_ENVELOPE_KEYS
  valueFrom:
    secretKeyRef:
      name: {{ include "tenfold.secretName" (dict "root" . "own" true "existing" .Values.envelopeKeys.existingSecret "what" "envelopeKeys") }}
      key: {{ .Values.envelopeKeys.key }}
{{- end -}}

{{/* hook, initContainer or manual, as far as what a hook needs can be there before the release. */}}
{{- define "tenfold.migrationsMode" -}}
{{- if and (eq .Values.migrations.mode "hook") (or .Values.postgresql.enabled .Values.externalSecrets.enabled) -}}
initContainer
{{- else -}}
{{- .Values.migrations.mode -}}
{{- end -}}
{{- end -}}

{{/* Environment of whatever connects to Postgres. Takes root, role: app, worker or owner. */}}
{{- define "tenfold.databaseEnv" -}}
{{- $values := .root.Values -}}
{{- $isOwner := eq .role "owner" -}}
{{- $variable := ternary "TENFOLD_OWNER_DATABASE_URL" "TENFOLD_DATABASE_URL" $isOwner -}}
{{- $user := get (dict "app" "tenfold_app" "worker" "tenfold_worker" "owner" "postgres") .role -}}
{{- $passwordKey := get (dict "app" "postgres-app-password" "worker" "postgres-worker-password" "owner" "postgres-password") .role -}}
{{- if $values.postgresql.enabled }}
- name: DATABASE_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "tenfold.ownSecret" .root }}
      key: {{ $passwordKey }}
- name: {{ $variable }}
  value: postgresql+asyncpg://{{ $user }}:$(DATABASE_PASSWORD)@{{ include "tenfold.name" (dict "root" .root "component" "postgres") }}:5432/tenfold
{{- else }}
{{- $secret := include "tenfold.secretName" (dict "root" .root "own" false "existing" $values.database.existingSecret "what" "database") }}
{{- $parts := $values.database.parts }}
{{- $users := dict "app" $parts.user "worker" (default $parts.user $parts.workerUser) "owner" $parts.ownerUser }}
{{- $passwords := dict "app" $parts.passwordKey "worker" (default $parts.passwordKey $parts.workerPasswordKey) "owner" $parts.ownerPasswordKey }}
{{- $urls := dict "app" $values.database.urlKey "worker" (default $values.database.urlKey $values.database.workerUrlKey) "owner" $values.database.ownerUrlKey }}
{{- if $parts.host }}
- name: DATABASE_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ get $passwords .role }}
- name: {{ $variable }}
  value: postgresql+asyncpg://{{ get $users .role }}:$(DATABASE_PASSWORD)@{{ $parts.host }}:{{ $parts.port }}/{{ $parts.name }}
{{- else }}
- name: {{ $variable }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret }}
      key: {{ get $urls .role }}
{{- end }}
{{- with $values.database.sslMode }}
- name: PGSSLMODE
  value: {{ . }}
{{- end }}
{{- if $values.database.caSecret }}
- name: PGSSLROOTCERT
  value: /etc/tenfold/database-ca/{{ $values.database.caKey }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "tenfold.redisEnv" -}}
{{- if .Values.valkey.enabled }}
- name: REDIS_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ include "tenfold.ownSecret" . }}
      key: valkey-password
- name: TENFOLD_REDIS_URL
  value: redis://:$(REDIS_PASSWORD)@{{ include "tenfold.name" (dict "root" . "component" "valkey") }}:6379/0
{{- else }}
- name: TENFOLD_REDIS_URL
  valueFrom:
    secretKeyRef:
      name: {{ include "tenfold.secretName" (dict "root" . "own" false "existing" .Values.redis.existingSecret "what" "redis") }}
      key: {{ .Values.redis.urlKey }}
{{- end }}
{{- end -}}

{{- define "tenfold.caMounts" -}}
{{- if and .database .root.Values.database.caSecret }}
- {name: database-ca, mountPath: /etc/tenfold/database-ca, readOnly: true}
{{- end }}
{{- if and .redis .root.Values.redis.caSecret }}
- {name: redis-ca, mountPath: /etc/tenfold/redis-ca, readOnly: true}
{{- end }}
{{- end -}}

{{- define "tenfold.caVolumes" -}}
{{- if and .database .root.Values.database.caSecret }}
- name: database-ca
  secret: {secretName: {{ .root.Values.database.caSecret }}}
{{- end }}
{{- if and .redis .root.Values.redis.caSecret }}
- name: redis-ca
  secret: {secretName: {{ .root.Values.redis.caSecret }}}
{{- end }}
{{- end -}}

{{/* Keys of the Secret that the chart makes, as a JSON list. */}}
{{- define "tenfold.ownSecretKeys" -}}
{{- $keys := list -}}
{{- if not .Values.externalSecrets.enabled -}}
{{- if not .Values.adminKey.existingSecret -}}{{- $keys = append $keys .Values.adminKey.key -}}{{- end -}}
{{- if not .Values.keyPepper.existingSecret -}}{{- $keys = append $keys .Values.keyPepper.key -}}{{- end -}}
{{- if not .Values.queueSecret.existingSecret -}}{{- $keys = append $keys .Values.queueSecret.key -}}{{- end -}}
{{- if not .Values.envelopeKeys.existingSecret -}}{{- $keys = append $keys .Values.envelopeKeys.key -}}{{- end -}}
{{- end -}}
{{- if .Values.postgresql.enabled -}}{{- $keys = concat $keys (list "postgres-password" "postgres-app-password" "postgres-worker-password") -}}{{- end -}}
{{- if .Values.valkey.enabled -}}{{- $keys = append $keys "valkey-password" -}}{{- end -}}
{{- toJson $keys -}}
{{- end -}}
