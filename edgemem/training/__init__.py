"""Training of experts for the stages, on files of examples; `corpus/` of the checkout writes such.

Nothing of the product imports this package. `lora` owns transformers, `adapters` owns gguf; only
`lora` and `trainer` import torch. All three come with the extra `train`, and are imported late.
Nothing here knows where examples come from.
"""
