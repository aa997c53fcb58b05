{{/*
Rules of NetworkPolicies. Invariant: a policy names both directions, so that what no rule allows is
refused; the cloud's metadata service is never reachable.
*/}}

{{/* Takes root, component, ingress and egress (lists of rules as text), annotations. */}}
{{- define "tenfold.networkPolicy" -}}
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  {{- include "tenfold.metadata" . | nindent 2 }}
spec:
  podSelector:
    matchLabels:
      {{- include "tenfold.selector" . | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- with trim (default "" .ingress) }}
    {{- . | nindent 4 }}
    {{- else }} []
    {{- end }}
  egress:
    - to:
        {{- toYaml .root.Values.networkPolicy.dnsTo | nindent 8 }}
      ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
    {{- with trim (default "" .egress) }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with .root.Values.networkPolicy.extraEgress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* One rule of egress. Takes peers, ports. */}}
{{- define "tenfold.egressRule" -}}
- to:
    {{- if .peers }}
    {{- toYaml .peers | nindent 4 }}
    {{- else }}
    - ipBlock: {cidr: 0.0.0.0/0, except: [169.254.0.0/16]}
    - ipBlock: {cidr: "::/0", except: ["fd00:ec2::/32", "fe80::/10"]}
    {{- end }}
  ports:
    {{- range .ports }}
    - {port: {{ include "tenfold.number" . }}, protocol: TCP}
    {{- end }}
{{- end -}}

{{- define "tenfold.peer" -}}
{{- list (dict "podSelector" (dict "matchLabels" (include "tenfold.selector" . | fromYaml))) | toJson -}}
{{- end -}}

{{- define "tenfold.egressDatabase" -}}
{{- if .Values.postgresql.enabled -}}
{{- include "tenfold.egressRule" (dict "peers" (include "tenfold.peer" (dict "root" . "component" "postgres") | fromJsonArray) "ports" (list 5432)) -}}
{{- else -}}
{{- include "tenfold.egressRule" (dict "peers" .Values.networkPolicy.databaseTo "ports" .Values.networkPolicy.databasePorts) -}}
{{- end -}}
{{- end -}}

{{- define "tenfold.egressRedis" -}}
{{- if .Values.valkey.enabled -}}
{{- include "tenfold.egressRule" (dict "peers" (include "tenfold.peer" (dict "root" . "component" "valkey") | fromJsonArray) "ports" (list 6379)) -}}
{{- else -}}
{{- include "tenfold.egressRule" (dict "peers" .Values.networkPolicy.redisTo "ports" .Values.networkPolicy.redisPorts) -}}
{{- end -}}
{{- end -}}

{{/* To the Hub: of pods that fetch a model, and only where one is fetched. */}}
{{- define "tenfold.egressHub" -}}
{{- if and (include "tenfold.modelIsFetched" .) (not .Values.huggingFace.offline) -}}
{{- include "tenfold.egressPublic" .Values.networkPolicy.hubTo -}}
{{- end -}}
{{- end -}}

{{/* To where adapters are imported from: of workers, and only where they may be imported. */}}
{{- define "tenfold.egressImports" -}}
{{- if .Values.imports.allow -}}
{{- include "tenfold.egressPublic" .Values.networkPolicy.importTo }}
{{- if and .Values.imports.networks (not .Values.networkPolicy.importTo) }}
- to:
    {{- range .Values.imports.networks }}
    - ipBlock: {cidr: {{ . | quote }}}
    {{- end }}
  ports: [{port: 443, protocol: TCP}]
{{- end }}
{{- end -}}
{{- end -}}

{{/* To the bucket of the adapters, where there is one. */}}
{{- define "tenfold.egressStore" -}}
{{- if .Values.adapterStore.url -}}
{{- include "tenfold.egressRule" (dict "peers" .Values.networkPolicy.storeTo "ports" .Values.networkPolicy.storePorts) -}}
{{- end -}}
{{- end -}}

{{/* To these peers, or without any to anywhere public, on 443. */}}
{{- define "tenfold.egressPublic" -}}
{{- if . -}}
{{- include "tenfold.egressRule" (dict "peers" . "ports" (list 443)) -}}
{{- else -}}
- to:
    - ipBlock: {cidr: 0.0.0.0/0, except: [10.0.0.0/8, 100.64.0.0/10, 169.254.0.0/16, 172.16.0.0/12, 192.168.0.0/16]}
    - ipBlock: {cidr: "2000::/3"}
  ports: [{port: 443, protocol: TCP}]
{{- end -}}
{{- end -}}
