# A new project contains a development container, which installs `baton` from the release, or from a copy next to its
# Dockerfile.
baton new job --lang python
python3 -c 'import json; assert json.load(open("job/.devcontainer/devcontainer.json"))["build"]["dockerfile"] == "Dockerfile"'
grep -q '^FROM python:' job/.devcontainer/Dockerfile
version=$(baton --version | cut -d ' ' -f 2)
# The command in the Dockerfile unpacks an archive that has the same layout as those that `make dist` builds.
archive=baton-$version-$(uname -m)-unknown-linux-gnu
mkdir -p "releases/download/v$version" "$archive" bin
echo program >"$archive/baton"
tar -czf "releases/download/v$version/$archive.tar.gz" "$archive"
command=$(sed -n '/^RUN command -v baton/,/[^\\]$/p' job/.devcontainer/Dockerfile |
  sed "s/^RUN command -v baton ||//; s#https://[^ ]*/releases#file://$PWD/releases#; s#/usr/local/bin#bin#")
sh -c "$command"
[ "$(cat bin/baton)" = program ]
