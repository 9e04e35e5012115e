"""The worker's edge to Nix.

Nothing above this package starts Nix or git, or knows their formats. Leaves first:

    store_path   store paths, base 32, hashes
    derivation   the text of `.drv` files
    nar          single-file archives in memory
    processes    child processes that leave nothing behind
    settings     what we tell Nix, what this machine's Nix is
    serve        one long-lived `nix-store --serve --write`
    classify     what the end of a build means
    building     a build slot: limits, stop, replacement of a broken store process
    flake        a commit of a repository in the store, with its flake inputs
    patterns     attribute patterns
    evaluate     attributes to `.drv` paths
    check        is this machine fit to be a worker
"""
