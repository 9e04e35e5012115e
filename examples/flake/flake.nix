{
  description = "About forty small derivations that build anywhere, without network and nixpkgs";

  outputs =
    { self }:
    let
      systems = [ "x86_64-linux" "aarch64-linux" ];
      each = value: builtins.listToAttrs (map (name: { inherit name; value = value name; }) systems);
    in
    {
      packages = each (system: import ./workshop.nix { inherit system; });
    };
}
