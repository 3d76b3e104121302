"""Products of many tokens on wgmma (sm_90a): weights as the rows of A, in registers; tokens as the columns of B.

- What is asked for: `product` (fields), `rules`, `scale_rules`, `refusals`.
- How work is shared out: `tiles`, `halves_cycles`, `few_tiles`, `between_tiles`, `last_turn` (which tile is the
  fastest), `shape`, `geometry`, `registers`, `tasks` (which tile a CTA takes next).
- Tokens in memory: `tokens`, and who writes them: `packing`, `scaled_packing`, `elements`.
- The warp that copies: `ring`, `copier`, `elected`, `lanes`.
- The warps that multiply: `multiply`; by forms of weights and tokens `codes`, `scaled`, `promoted`, `blocks`,
  `factors`, `pipelined`; `passing`, `slices`.
- Results: `results`, `rounds`, `outlets`, `norms`, `heads`, `halves`, `carried`; where CTAs share k `exchange`,
  `streams`.
"""
