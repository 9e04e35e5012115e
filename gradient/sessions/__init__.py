"""One session for each connected worker: frames in, calls of the rules, frames out."""
