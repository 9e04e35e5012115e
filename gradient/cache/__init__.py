"""The binary cache: Nix's own HTTP protocol over an object store, signed for each cache."""
