"""Matrix products of packed weights with a few tokens: geometry, loops and what is fused to them."""
