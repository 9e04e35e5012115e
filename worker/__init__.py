"""The worker of Gradient: it fetches, evaluates and builds with Nix."""
