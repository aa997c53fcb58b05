{{/*
Names, labels, images. Each helper takes a dict: root is the chart's context, component a name such
as api, and for images `image` is its block.
*/}}

{{- define "tenfold.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tenfold.name" -}}
{{- printf "%s-%s" (include "tenfold.fullname" .root) .component -}}
{{- end -}}

{{- define "tenfold.selector" -}}
app.kubernetes.io/name: {{ default .root.Chart.Name .root.Values.nameOverride }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tenfold.labels" -}}
{{- include "tenfold.selector" . }}
app.kubernetes.io/part-of: tenfold
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Name, namespace, labels and annotations of an object; `annotations` adds to the common ones. */}}
{{- define "tenfold.metadata" -}}
name: {{ default (include "tenfold.name" .) .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "tenfold.labels" . | nindent 2 }}
  {{- with .labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (dict) (default (dict) .annotations) .root.Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tenfold.image" -}}
{{- $image := .image -}}
{{- $registry := default $image.registry .root.Values.global.imageRegistry -}}
{{- $tag := default .root.Chart.AppVersion $image.tag -}}
{{- if eq $tag "latest" -}}
{{- fail (printf "image %s: the tag latest names no version; pin a tag or a digest" $image.repository) -}}
{{- end -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ $tag }}{{ end -}}
{{- end -}}

{{- define "tenfold.serviceAccount" -}}
{{- if .values.serviceAccount.create -}}
{{- default (include "tenfold.name" .) .values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* A number as digits: large ones are floats to Helm, and would be rendered as 8e+09. */}}
{{- define "tenfold.number" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) -}}{{ . | int64 }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}

{{- define "tenfold.storageClass" -}}
{{- with default .root.Values.global.storageClass .storageClass }}
storageClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* Every engine: its model's entry over the values of `engine`, as JSON. Takes root, model. */}}
{{- define "tenfold.engineValues" -}}
{{- $defaults := omit (deepCopy .root.Values.engine) "models" -}}
{{- mergeOverwrite $defaults (deepCopy .model) | toJson -}}
{{- end -}}

{{- define "tenfold.engineComponent" -}}
{{- printf "engine-%s" .name | trunc 22 | trimSuffix "-" -}}
{{- end -}}
