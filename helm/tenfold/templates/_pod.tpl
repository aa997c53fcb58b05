{{/*
What all pods have in common. Invariant: the rules of the restricted Pod Security Standard, under
any user id: no root, no capability, no writable root file system, no token of the API server.
*/}}

{{- define "tenfold.podSecurityContext" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001 "fsGroupChangePolicy" "OnRootMismatch" "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- toYaml (mergeOverwrite $default (deepCopy .)) -}}
{{- end -}}

{{- define "tenfold.containerSecurityContext" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "runAsNonRoot" true "privileged" false "capabilities" (dict "drop" (list "ALL")) -}}
{{- toYaml (mergeOverwrite $default (deepCopy .)) -}}
{{- end -}}

{{/* Image, pull policy, security and resources of a container. Takes root, values. */}}
{{- define "tenfold.containerBasics" -}}
image: {{ include "tenfold.image" (dict "root" .root "image" .values.image) }}
imagePullPolicy: {{ .values.image.pullPolicy }}
securityContext:
  {{- include "tenfold.containerSecurityContext" .values.containerSecurityContext | nindent 2 }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
{{- end -}}

{{/* One probe: root, probe, path, port. */}}
{{- define "tenfold.probe" -}}
httpGet: {path: {{ .path | quote }}, port: {{ .port }}}
{{ toYaml .probe }}
{{- end -}}

{{- define "tenfold.sleep" -}}
command: [sleep, infinity]
{{- end -}}

{{/*
A Deployment. Takes root, component, values, containers, and optionally initContainers, volumes,
resourceClaims, podAnnotations, spread (soft anti-affinity by host), runtimeClassName.
*/}}
{{- define "tenfold.deployment" -}}
{{- $values := .values -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "tenfold.metadata" . | nindent 2 }}
spec:
  {{- if eq (default "none" (dig "autoscaling" "kind" "none" $values)) "none" }}
  replicas: {{ $values.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  progressDeadlineSeconds: {{ add 300 (mul $values.probes.startup.periodSeconds $values.probes.startup.failureThreshold) }}
  strategy:
    {{- toYaml $values.strategy | nindent 4 }}
  selector:
    matchLabels:
      {{- include "tenfold.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "tenfold.labels" . | nindent 8 }}
        {{- with $values.podLabels }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      annotations:
        checksum/generated-secret: {{ include "tenfold.ownSecretKeys" .root | sha256sum }}
        {{- with merge (dict) $values.podAnnotations .root.Values.commonAnnotations }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
    spec:
      {{- include "tenfold.podSpec" . | nindent 6 }}
{{- end -}}

{{/* The pod of a Deployment, a Job or a test: see tenfold.deployment. */}}
{{- define "tenfold.podSpec" -}}
{{- $values := .values -}}
serviceAccountName: {{ include "tenfold.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .root.Values.global.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "tenfold.podSecurityContext" $values.podSecurityContext | nindent 2 }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $values.terminationGracePeriodSeconds }}
terminationGracePeriodSeconds: {{ . }}
{{- end }}
{{- with $values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity:
  {{- toYaml $values.affinity | nindent 2 }}
{{- else if .spread }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "tenfold.selector" . | nindent 14 }}
{{- end }}
{{- if $values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- toYaml $values.topologySpreadConstraints | nindent 2 }}
{{- else if .spread }}
topologySpreadConstraints:
  {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
  - maxSkew: 1
    topologyKey: {{ . }}
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "tenfold.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- with .resourceClaims }}
resourceClaims:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .restartPolicy }}
restartPolicy: {{ . }}
{{- end }}
{{- $init := trim (default "" .initContainers) }}
{{- if or $init $values.initContainers }}
initContainers:
  {{- with $init }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- with $values.initContainers }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
containers:
  {{- trim .containers | nindent 2 }}
  {{- with $values.sidecars }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
volumes:
  {{- trim .volumes | nindent 2 }}
  {{- with $values.volumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* Homes and caches of a process that may write nowhere but to /scratch. */}}
{{- define "tenfold.scratchEnv" -}}
- {name: HOME, value: /scratch}
- {name: USER, value: tenfold}
- {name: TMPDIR, value: /scratch}
- {name: XDG_CACHE_HOME, value: /scratch/cache}
- {name: PYTHONDONTWRITEBYTECODE, value: "1"}
{{- end -}}

{{/* A ServiceAccount, where one is to be made. Takes root, component, values, annotations. */}}
{{- define "tenfold.serviceAccountObject" -}}
{{- if .values.serviceAccount.create -}}
apiVersion: v1
kind: ServiceAccount
metadata:
  {{- $annotations := merge (dict) (default (dict) .annotations) .values.serviceAccount.annotations }}
  {{- include "tenfold.metadata" (merge (dict "name" (include "tenfold.serviceAccount" .) "annotations" $annotations) .) | nindent 2 }}
automountServiceAccountToken: false
{{- end -}}
{{- end -}}

{{/* A PodDisruptionBudget; none for a single replica, which could never be moved. */}}
{{- define "tenfold.pdb" -}}
{{- $pdb := .values.pdb -}}
{{- $kind := default "none" (dig "autoscaling" "kind" "none" .values) -}}
{{- $least := int .values.replicas -}}
{{- if ne $kind "none" -}}{{- $least = int .values.autoscaling.minReplicas -}}{{- end -}}
{{- if and $pdb.enabled (or $pdb.force (gt $least 1)) -}}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  {{- include "tenfold.metadata" . | nindent 2 }}
spec:
  {{- toYaml (omit $pdb "enabled" "force") | nindent 2 }}
  selector:
    matchLabels:
      {{- include "tenfold.selector" . | nindent 6 }}
{{- end -}}
{{- end -}}
