{{/* An engine's container and volumes. Take root, model (its entry), values (of this engine). */}}

{{- define "tenfold.engineSettings" -}}
{{- include "tenfold.settingsEnv" (dict "settings" .settings "variables" (dict "device" "DEVICE" "dtype" "DTYPE" "batchInvariant" "BATCH_INVARIANT" "gpuMemoryUtilization" "GPU_MEMORY_UTILIZATION" "poolBytes" "POOL_BYTES" "cpuPoolBytes" "CPU_POOL_BYTES" "hostBytes" "HOST_BYTES" "maxNumSeqs" "MAX_NUM_SEQS" "maxNumBatchedTokens" "MAX_NUM_BATCHED_TOKENS" "threads" "THREADS" "preemption" "PREEMPTION" "prefixCaching" "PREFIX_CACHING" "prefixProtectedShare" "PREFIX_PROTECTED_SHARE" "sharedPrefixes" "SHARED_PREFIXES" "certifiedOnly" "CERTIFIED_ONLY" "drainSeconds" "DRAIN_S" "stepLimitSeconds" "STEP_LIMIT_S")) -}}
{{- end -}}

{{- define "tenfold.engineContainer" -}}
{{- $values := .values -}}
- name: engine
  image: {{ include "tenfold.image" (dict "root" .root "image" $values.image) }}
  imagePullPolicy: {{ $values.image.pullPolicy }}
  securityContext:
    {{- include "tenfold.containerSecurityContext" $values.containerSecurityContext | nindent 4 }}
  resources:
    requests:
      {{- toYaml $values.resources.requests | nindent 6 }}
    limits:
      {{- toYaml $values.resources.limits | nindent 6 }}
      {{- with $values.gpu.resourceName }}
      {{ . }}: {{ $values.gpu.count }}
      {{- end }}
    {{- with $values.gpu.resourceClaims }}
    claims:
      {{- range . }}
      - name: {{ .name }}
      {{- end }}
    {{- end }}
  {{- if .root.Values.diagnosticMode.enabled }}
  {{- include "tenfold.sleep" . | nindent 2 }}
  {{- else }}
  args: {{ toJson (concat (list "engine") $values.extraArgs) }}
  {{- end }}
  env:
    {{- include "tenfold.scratchEnv" .root | nindent 4 }}
    - {name: TRITON_CACHE_DIR, value: /scratch/triton}
    - {name: TORCHINDUCTOR_CACHE_DIR, value: /scratch/inductor}
    - {name: HF_HUB_OFFLINE, value: "1"}
    {{- include "tenfold.modelEnv" .root | nindent 4 }}
    {{- include "tenfold.redisEnv" .root | trim | nindent 4 }}
    {{- include "tenfold.queueSecretEnv" .root | nindent 4 }}
    {{- include "tenfold.adapterStoreEnv" .root | nindent 4 }}
    - {name: TENFOLD_ADAPTER_CACHE, value: /scratch/adapter-cache}
    - {name: TENFOLD_HEALTH_HOST, value: 0.0.0.0}
    - {name: TENFOLD_HEALTH_PORT, value: "8080"}
    {{- include "tenfold.engineSettings" (dict "settings" $values.settings) | trim | nindent 4 }}
    {{- with include "tenfold.tracingEnv" .root }}
    {{- . | nindent 4 }}
    {{- end }}
    {{- with $values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  ports:
    - {name: health, containerPort: 8080}
  {{- if not .root.Values.diagnosticMode.enabled }}
  startupProbe:
    {{- include "tenfold.probe" (dict "probe" $values.probes.startup "path" "/readyz?phase=startup" "port" "health") | nindent 4 }}
  livenessProbe:
    {{- include "tenfold.probe" (dict "probe" $values.probes.liveness "path" "/livez" "port" "health") | nindent 4 }}
  readinessProbe:
    {{- include "tenfold.probe" (dict "probe" $values.probes.readiness "path" "/readyz" "port" "health") | nindent 4 }}
  {{- end }}
  volumeMounts:
    - {name: scratch, mountPath: /scratch}
    - {name: shm, mountPath: /dev/shm}
    - {name: adapters, mountPath: /adapters, readOnly: true}
    - {name: model, mountPath: /models, readOnly: true}
    {{- include "tenfold.caMounts" (dict "root" .root "redis" true) | trim | nindent 4 }}
    {{- with $values.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{- define "tenfold.engineVolumes" -}}
{{- $cache := .values.cache -}}
- name: scratch
  emptyDir: {sizeLimit: {{ $cache.scratchSizeLimit }}}
- name: shm
  emptyDir: {medium: Memory, sizeLimit: {{ .values.sharedMemory }}}
- name: adapters
  persistentVolumeClaim: {claimName: {{ include "tenfold.storeClaim" .root }}, readOnly: true}
- name: model
  {{- if not .model.source.hub }}
  persistentVolumeClaim: {claimName: {{ .model.source.existingClaim }}, readOnly: true}
  {{- else if $cache.existingClaim }}
  persistentVolumeClaim: {claimName: {{ $cache.existingClaim }}}
  {{- else if eq $cache.type "pvc" }}
  persistentVolumeClaim: {claimName: {{ include "tenfold.name" . }}-models}
  {{- else if eq $cache.type "ephemeral" }}
  ephemeral:
    volumeClaimTemplate:
      spec:
        accessModes: [ReadWriteOnce]
        {{- include "tenfold.storageClass" (dict "root" .root "storageClass" $cache.storageClass) | nindent 8 }}
        resources: {requests: {storage: {{ $cache.size }}}}
  {{- else }}
  emptyDir: {sizeLimit: {{ $cache.size }}}
  {{- end }}
{{- include "tenfold.caVolumes" (dict "root" .root "redis" true) }}
{{- end -}}
