"""What lies behind Memory and Chat: which parts are loaded, how messages become memories, what a
model is shown of them, and the upkeep of what is stored."""
