"""Views of finished rows for trainers: one file a format, none of them needs the trainer's package."""
