#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes what is generated from the chart into manifests/; with --check, says instead what is out of date. HELM names helm.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
helm=${HELM:-bin/tools/helm}
namespace=topodra-system

# Folders whose YAML files are all generated.
readonly folders=(base driver policies scheduler webhook kustomize/base)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export HELM_CACHE_HOME=$work/helm HELM_CONFIG_HOME=$work/helm HELM_DATA_HOME=$work/helm

# render ARGUMENT…: what `helm template` makes of the chart.
render() {
	"$helm" template topodra manifests/chart --namespace "$namespace" "$@"
}

# generated FILE: writes standard input into a file below the output folder.
generated() {
	mkdir -p "$(dirname "$work/out/$1")"
	{
		echo '# SPDX-License-Identifier: Apache-2.0'
		echo '# Generated from manifests/chart by "make manifests": change it there.'
		# No blanks at the end of lines, and no empty lines at the ends of documents.
		awk '{ sub(/[ \t]+$/, "") } /./ { if (empty && !/^---/) print ""; print; seen = 1; empty = 0 } !/./ { empty = seen }'
	} >"$work/out/$1"
}

render -s templates/deviceclasses.yaml | generated base/deviceclasses.yaml
render -s templates/deviceclasses.yaml --set deviceClasses.extendedResourceName=nvidia.com/gpu | generated base/deviceclasses-extended-resource.yaml
render -s templates/namespace.yaml -s templates/scheduler/rbac.yaml --set namespace.create=true | generated scheduler/rbac.yaml
render -s templates/scheduler/config.yaml |
	awk 'found { if (/^    /) print substr($0, 5); else exit } /^  scheduler-config[.]yaml:/ { found = 1 }' |
	generated scheduler/scheduler-config.yaml
# Outside of the chart it is not known whether the driver evicts pods.
render -s templates/namespace.yaml -s templates/driver/rbac.yaml --set namespace.create=true,driver.onViolation=Evict | generated driver/rbac.yaml
render -s templates/webhook/rbac.yaml | generated webhook/rbac.yaml
render -s templates/webhook/configuration.yaml | generated webhook/configuration.yaml
for policy in manifests/chart/templates/policies/*.yaml; do
	name=$(basename "$policy")
	case $name in
	one-pod-per-share.yaml) render -s "templates/policies/$name" --set policies.onePodPerShare=true | generated "policies/optional/$name" ;;
	*) render -s "templates/policies/$name" | generated "policies/$name" ;;
	esac
done

render --set namespace.create=true --output-dir "$work/all" >/dev/null
resources=()
while IFS= read -r file; do
	name=${file#"$work/all/topodra/templates/"}
	if [[ $name == namespace.yaml ]]; then resources=("$name" "${resources[@]}"); else resources+=("$name"); fi
	generated "kustomize/base/$name" <"$file"
done < <(find "$work/all" -name '*.yaml' | LC_ALL=C sort)
{
	printf 'apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n'
	printf '# Objects that others depend on come first.\nsortOptions: {order: legacy}\nresources:\n'
	printf -- '- %s\n' "${resources[@]}"
} | generated kustomize/base/kustomization.yaml

if [[ ${1-} == --check ]]; then
	for folder in "${folders[@]}"; do
		# Only YAML: a folder may have a README beside.
		if ! diff -ru --exclude='*.md' "manifests/$folder" "$work/out/$folder"; then stale=1; fi
	done
	if [[ -n ${stale-} ]]; then
		echo 'what is generated from manifests/chart is out of date: run make manifests' >&2
		exit 1
	fi
	exit
fi
for folder in "${folders[@]}"; do
	mkdir -p "manifests/$folder"
	find "manifests/$folder" -name '*.yaml' -delete
	cp -R "$work/out/$folder/." "manifests/$folder/"
done
