// A target needs a source; its product is the precompiled header.
