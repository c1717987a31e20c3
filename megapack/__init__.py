"""megapack: chat data to Megatron-ready packed rows, training, and teacher payloads.

The layers, from the bottom: errors, layout, records, then the siblings store, packing and
conversation, then jobs and steps (all of them free of torch), then parallel, batch, model,
outputs and engine. Imports only point down; ``docs/design.md`` explains why.
"""
