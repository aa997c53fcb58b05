{{/*
Where the base model comes from: a claim that holds it, or the Hub, fetched by an init container.
The API and the worker need its configuration and tokenizer only. Invariant: whoever serves a model
has its folder at the same path in every pod.
*/}}

{{/* The one entry of engine.models. */}}
{{- define "tenfold.model" -}}
{{- $models := .Values.engine.models -}}
{{- if ne (len $models) 1 -}}
{{- fail (printf "engine.models has %d entries: one base model a release. The queue does not tell bases apart; install a release for each" (len $models)) -}}
{{- end -}}
{{- $model := first $models -}}
{{- $source := default (dict) $model.source -}}
{{- if and $source.hub $source.existingClaim -}}
{{- fail (printf "engine.models: %s has two sources, hub and existingClaim" $model.name) -}}
{{- end -}}
{{- if not (or $source.hub $source.existingClaim) -}}
{{- fail (printf "engine.models: %s has no source: set source.hub or source.existingClaim" $model.name) -}}
{{- end -}}
{{- toJson $model -}}
{{- end -}}

{{- define "tenfold.modelPath" -}}
{{- $model := include "tenfold.model" . | fromJson -}}
{{- if $model.source.hub -}}/models/{{ $model.name }}{{- else -}}{{ clean (printf "/models/%s" (default "" $model.source.path)) }}{{- end -}}
{{- end -}}

{{- define "tenfold.modelEnv" -}}
{{- $model := include "tenfold.model" . | fromJson -}}
- {name: TENFOLD_MODEL, value: {{ include "tenfold.modelPath" . | quote }}}
- {name: TENFOLD_MODEL_ID, value: {{ default (default $model.name $model.source.hub) $model.id | quote }}}
{{- end -}}

{{- define "tenfold.modelIsFetched" -}}
{{- $model := include "tenfold.model" . | fromJson -}}
{{- if $model.source.hub }}yes{{ end -}}
{{- end -}}

{{/* The init container that fetches it. Takes root, values, all (weights as well). */}}
{{- define "tenfold.fetchContainer" -}}
{{- $model := include "tenfold.model" .root | fromJson -}}
{{- if $model.source.hub }}
- name: fetch-model
  {{- include "tenfold.containerBasics" . | nindent 2 }}
  args:
    - fetch
    - {{ $model.source.hub | quote }}
    - --to={{ include "tenfold.modelPath" .root }}
    {{- with $model.source.revision }}
    - --revision={{ . }}
    {{- end }}
    {{- if not .all }}
    - --without-weights
    {{- end }}
  env:
    {{- include "tenfold.scratchEnv" .root | nindent 4 }}
    - {name: HF_HOME, value: /scratch/huggingface}
    {{- if .root.Values.huggingFace.offline }}
    - {name: HF_HUB_OFFLINE, value: "1"}
    {{- end }}
    {{- with .root.Values.huggingFace.endpoint }}
    - {name: HF_ENDPOINT, value: {{ . | quote }}}
    {{- end }}
    {{- with .root.Values.huggingFace.existingSecret }}
    - name: HF_TOKEN
      valueFrom:
        secretKeyRef: {name: {{ . }}, key: {{ $.root.Values.huggingFace.tokenKey }}}
    {{- end }}
  volumeMounts:
    - {name: model, mountPath: /models}
    - {name: scratch, mountPath: /scratch}
{{- end }}
{{- end -}}

{{/* The volume of pods that need no weights. */}}
{{- define "tenfold.modelVolume" -}}
{{- $model := include "tenfold.model" . | fromJson -}}
- name: model
  {{- if $model.source.hub }}
  emptyDir: {sizeLimit: 512Mi}
  {{- else }}
  persistentVolumeClaim: {claimName: {{ $model.source.existingClaim }}, readOnly: true}
  {{- end }}
{{- end -}}

{{- define "tenfold.storeClaim" -}}
{{- default (printf "%s-adapters" (include "tenfold.fullname" .)) .Values.adapterStore.existingClaim -}}
{{- end -}}
