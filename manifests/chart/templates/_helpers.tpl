{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- /* Labels of one component; the argument is a dict with "root" and "component". */ -}}
{{- define "topodra.labels" -}}
{{ include "topodra.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
{{- end -}}

{{- /* What Services, Deployments and policies select one component by; it may never change. */ -}}
{{- define "topodra.selector" -}}
app.kubernetes.io/name: topodra
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- /* The user names of our service accounts, as the API server knows them. */ -}}
{{- define "topodra.schedulerUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:topodra-scheduler
{{- end -}}
{{- define "topodra.driverUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:topodra-driver
{{- end -}}

{{- /* An image reference; the argument is a dict with "root" and "image" (registry, repository, tag, digest). */ -}}
{{- define "topodra.image" -}}
{{- $registry := .image.registry | default .root.Values.image.registry -}}
{{- if $registry }}{{ $registry }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag | default .root.Values.image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- /* What every pod but the driver's runs with: the Pod Security Standard "restricted" and a read-only root. */ -}}
{{- define "topodra.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end -}}
{{- define "topodra.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsNonRoot: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* The namespace that holds the lease of the scheduler's leader. */ -}}
{{- define "topodra.leaseName" -}}topodra-scheduler{{- end -}}

{{- /* The schedulerName that pods for our GPUs have to have. */ -}}
{{- define "topodra.schedulerName" -}}
{{- if eq .Values.scheduler.mode "Replace" }}default-scheduler{{ else }}topodra-scheduler{{ end -}}
{{- end -}}
