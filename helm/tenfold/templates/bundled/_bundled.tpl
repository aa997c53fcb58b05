{{/*
A server of one pod with a claim of its own, and its Service. Takes root, component, values, port,
data (where its claim is mounted), env, probe (a command), and optionally command, mounts, volumes.
*/}}
{{- define "tenfold.bundled" -}}
{{- $name := include "tenfold.name" . -}}
apiVersion: v1
kind: Service
metadata:
  {{- include "tenfold.metadata" . | nindent 2 }}
spec:
  selector:
    {{- include "tenfold.selector" . | nindent 4 }}
  ports:
    - {name: server, port: {{ .port }}, targetPort: server}
---
apiVersion: apps/v1
kind: StatefulSet
metadata:
  {{- include "tenfold.metadata" . | nindent 2 }}
spec:
  serviceName: {{ $name }}
  replicas: 1
  selector:
    matchLabels:
      {{- include "tenfold.selector" . | nindent 6 }}
  template:
    metadata:
      labels:
        {{- include "tenfold.labels" . | nindent 8 }}
    spec:
      automountServiceAccountToken: false
      enableServiceLinks: false
      {{- with .root.Values.global.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      terminationGracePeriodSeconds: 60
      securityContext:
        {{- include "tenfold.podSecurityContext" (dict) | nindent 8 }}
      containers:
        - name: server
          {{- include "tenfold.containerBasics" (dict "root" .root "values" (merge (dict "containerSecurityContext" (dict)) .values)) | nindent 10 }}
          {{- with .command }}
          command: {{ toJson . }}
          {{- end }}
          env:
            {{- .env | nindent 12 }}
          ports:
            - {name: server, containerPort: {{ .port }}}
          startupProbe: {exec: {command: {{ toJson .probe }}}, periodSeconds: 2, failureThreshold: 60, timeoutSeconds: 5}
          readinessProbe: {exec: {command: {{ toJson .probe }}}, periodSeconds: 5, timeoutSeconds: 5}
          livenessProbe: {tcpSocket: {port: server}, periodSeconds: 20, failureThreshold: 6, timeoutSeconds: 5}
          volumeMounts:
            - {name: data, mountPath: {{ .data }}}
            - {name: tmp, mountPath: /tmp}
            {{- with .mounts }}
            {{- . | nindent 12 }}
            {{- end }}
      volumes:
        - {name: tmp, emptyDir: {sizeLimit: 64Mi}}
        {{- with .volumes }}
        {{- . | nindent 8 }}
        {{- end }}
        {{- if not .values.persistence.enabled }}
        - {name: data, emptyDir: {sizeLimit: {{ .values.persistence.size }}}}
        {{- end }}
  {{- if .values.persistence.enabled }}
  volumeClaimTemplates:
    - metadata: {name: data}
      spec:
        accessModes: [ReadWriteOnce]
        {{- include "tenfold.storageClass" (dict "root" .root "storageClass" .values.persistence.storageClass) | nindent 8 }}
        resources: {requests: {storage: {{ .values.persistence.size }}}}
  {{- end }}
{{- end -}}
