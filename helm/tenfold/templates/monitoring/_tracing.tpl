{{/* Where api and engine send their traces, if anywhere. Takes root. */}}
{{- define "tenfold.tracingEnv" -}}
{{- with .Values.tracing.endpoint -}}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ . | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: parentbased_traceidratio}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ $.Values.tracing.sampleRatio | quote }}}
{{- end -}}
{{- end -}}
