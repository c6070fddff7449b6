"""Raw rows in, the frozen plan out: sources, normalisation, identity, first prompts, the plan's files."""
