"""How does a local batch reach its devices? The only room that imports jax."""
