"""Support functions of check mode: shadow memory, races, and the order between the accesses of warps and CTAs."""
