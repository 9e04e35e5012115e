# One derivation made of nothing but /bin/sh, so that the example needs no network and no
# nixpkgs. Scripts use what the shell itself can do; `pause` waits where the machine has a
# `sleep` and goes on at once where a sandbox has none.
{ system }:
{ name, script, ... }@arguments:
let
  preamble = ''
    set -eu
    say() { printf '%s: %s\n' "$name" "$*"; }
    pause() { sleep "$1" 2>/dev/null || true; }
  '';
in
builtins.derivation (
  {
    inherit system;
    builder = "/bin/sh";
    args = [ "-c" (preamble + script) ];
    PATH = "/usr/bin:/bin";
  }
  // removeAttrs arguments [ "script" ]
)
