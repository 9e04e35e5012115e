"""What a job does: build one derivation, or read a flake.

job         what every job has at hand, and how a job fails
build       a build job
evaluate    an evaluation job: fetch, evaluate, walk
walk        from entry points to every derivation below them
"""
