"""Trains the stages' experts on files of examples, such as `corpus/` of the checkout writes.

Nothing of the product imports this package. `lora` owns transformers, `adapters` owns gguf; only
`lora` and `trainer` import torch. All three come with the extra `train`, and are imported late.
Nothing here knows where examples come from.
"""
