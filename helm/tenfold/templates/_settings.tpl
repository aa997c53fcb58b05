{{/*
What processes are told besides credentials. Each helper gives entries of an environment. Invariant:
what several of them must agree on is said to each of them from one value.
*/}}

{{/* A variable for each setting that has a value. Takes settings, variables: names by setting. */}}
{{- define "tenfold.settingsEnv" -}}
{{- range $setting, $variable := .variables -}}
{{- $value := include "tenfold.number" (get $.settings $setting) -}}
{{- if $value }}
- {name: TENFOLD_{{ $variable }}, value: {{ $value | quote }}}
{{- end }}
{{- end -}}
{{- end -}}

{{/* Where adapters' bytes lie, for api, worker and engine. */}}
{{- define "tenfold.adapterStoreEnv" -}}
- {name: TENFOLD_ADAPTER_STORE, value: /adapters}
{{- with .Values.adapterStore.url }}
- {name: TENFOLD_ADAPTER_STORE_URL, value: {{ . | quote }}}
{{- include "tenfold.settingsEnv" (dict "settings" $.Values.adapterStore "variables" (dict "cacheBytes" "ADAPTER_CACHE_BYTES")) }}
{{- end }}
{{- end -}}

{{/* What API and workers are told alike of adapters and files. */}}
{{- define "tenfold.adaptersEnv" -}}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.api "variables" (dict "maxUploadBytes" "MAX_UPLOAD_BYTES")) }}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.adapters "variables" (dict "retentionDays" "ADAPTER_RETENTION_DAYS" "maxOverrideBytes" "MAX_OVERRIDE_BYTES")) }}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.files "variables" (dict "retentionDays" "FILE_RETENTION_DAYS")) }}
- {name: TENFOLD_KNOWN_BASES, value: {{ join "," .Values.adapters.knownBases | quote }}}
- {name: TENFOLD_IMPORT_ALLOW, value: {{ join "," .Values.imports.allow | quote }}}
{{- end -}}

{{- define "tenfold.apiSettings" -}}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.api.settings "variables" (dict "queueTimeoutSeconds" "QUEUE_TIMEOUT_S" "maxQueueTimeoutSeconds" "MAX_QUEUE_TIMEOUT_S" "maxQueueWaitSeconds" "MAX_QUEUE_WAIT_S" "maxQueuedRequests" "MAX_QUEUED_REQUESTS" "failoverTimeoutSeconds" "FAILOVER_TIMEOUT_S" "dependencyTimeoutSeconds" "DEPENDENCY_TIMEOUT_S" "clientStallTimeoutSeconds" "CLIENT_STALL_TIMEOUT_S" "bodyTimeoutSeconds" "BODY_TIMEOUT_S" "maxLoopLagSeconds" "MAX_LOOP_LAG_S" "maxUsageBacklog" "MAX_USAGE_BACKLOG")) }}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.adapters "variables" (dict "uploadPartBytes" "UPLOAD_PART_BYTES" "downloadUrlSeconds" "DOWNLOAD_URL_S")) }}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.files "variables" (dict "maxFileBytes" "MAX_FILE_BYTES" "maxTenantBytes" "MAX_TENANT_FILE_BYTES")) }}
{{- end -}}

{{/* How workers import, and whom they tell what was used. */}}
{{- define "tenfold.workerSettings" -}}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.imports "variables" (dict "hub" "IMPORT_HUB" "timeoutSeconds" "IMPORT_TIMEOUT_S")) }}
{{- include "tenfold.settingsEnv" (dict "settings" .Values.adapters "variables" (dict "goldenTimeoutSeconds" "GOLDEN_TIMEOUT_S")) }}
- {name: TENFOLD_IMPORT_NETWORKS, value: {{ join "," .Values.imports.networks | quote }}}
{{- if .Values.imports.caSecret }}
- {name: TENFOLD_IMPORT_CA_FILE, value: /etc/tenfold/import-ca/{{ .Values.imports.caKey }}}
{{- end }}
{{- with .Values.imports.credentials }}
{{- if .existingSecret }}
- name: TENFOLD_IMPORT_CREDENTIALS
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .key }}}
{{- end }}
{{- end }}
{{- with .Values.usageExport }}
{{- if .url }}
- {name: TENFOLD_USAGE_EXPORT_URL, value: {{ .url | quote }}}
{{- if .existingSecret }}
- name: TENFOLD_USAGE_EXPORT_TOKEN
  valueFrom:
    secretKeyRef: {name: {{ .existingSecret }}, key: {{ .tokenKey }}}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
