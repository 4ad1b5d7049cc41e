#!/bin/sh
# `make test-ui`: finds or installs a browser and what the tests need, checks the types of the page's
# modules, and runs the tests. $1 is the directory of the environment's programs, the rest is pytest's.
set -eu
bin=$1
shift
cd "$(dirname "$0")/../.."

browser() {
  for name in "${SRT_BROWSER:-}" chromium chromium-browser google-chrome chrome; do
    [ -n "$name" ] && command -v "$name" && return
  done
  return 1
}

if ! browser > /dev/null && [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
  timeout 300 sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends chromium' \
    > /dev/null 2>&1 || true
fi
if ! browser > /dev/null; then
  echo "There is no browser, and none can be installed: the page is not tested."
  exit 0
fi
"$bin/pip" install --quiet --disable-pip-version-check -c constraints.txt -e '.[test-ui]'
"$bin/python" -m tests.ui.vendor
if command -v npm > /dev/null && (cd tests/ui && npm ci --no-audit --no-fund --silent); then
  tests/ui/node_modules/.bin/tsc -p srt/gateway/ui/jsconfig.json
else
  echo "There is no npm, or it fails: types and accessibility of the page are not checked."
fi
SRT_BROWSER=$(browser) exec "$bin/python" -m pytest --profile ui tests/ui "$@"
