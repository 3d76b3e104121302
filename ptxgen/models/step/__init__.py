"""A model and its weights' formats → the `Program` of a step: `decode` has the function, `step_program`.

Classes that extend one another, the first first: `draft` (tensors and ops), `row_forms` (in which form rows go into
products), `product_inputs` (ops that norm and pack them), `products`, `tiled` (ops that write tiles for the next
product), `attention`. Beside them: `prompt_steps` (the steps of a prompt), `fitted` (a step for a device with fewer
multiprocessors).
"""
