"""The stages of MemLoRA's pipeline: extraction, update, generation.

Each file holds a stage's prompt, its JSON schema and its parser. A stage names itself to the engine
(`stage="extraction"`): that is where a LoRA expert is bound.
"""
