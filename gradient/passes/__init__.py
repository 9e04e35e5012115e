"""What a server does by itself: supervised passes, on a tick and on kicks."""
