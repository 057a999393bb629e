"""What runs models: finding their files, embedding text, generating text.

Knows files, tokens, grammars, adapters, processors; knows no memories, no stores, and not what a
stage is for. Importing this package loads no model library. From the files to the engine:

    machine      cores, caches, and whether llama.cpp computes rightly here
    models       which there are and where they lie
    gguf         the header of a model's file
    llama        llama.cpp, loaded, and a file's weights as float32
    vocabulary   texts and chats to tokens
    generation   one answer: its options, its next token, its text
    prefixes     the KV cache that stages share; experts: their LoRA adapters, and sets of these
    vision       images in prompts
    engine       one loaded model; tune: the quantisation and thread counts that are fastest for it
    embedder     texts, their tokens and images to vectors
    onnxfile     the embedder's file, and experts for it; encoder: its layers with experts
"""
