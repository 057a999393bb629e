"""Experts for the stages: data, training, evaluation. Nothing of the product imports this package.

Only `lora.py` and `trainer.py` import torch (extra `train`), and late.
"""
