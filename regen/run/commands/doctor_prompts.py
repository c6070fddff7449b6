"""What the doctor asks: a dozen plain chat prompts of different kinds, harmless to whoever reads the server's log."""

PROMPTS = (
    "Explain in a few sentences why the sky is blue in the day and red in the evening.",
    "Write a Python function that returns the n-th Fibonacci number without recursion, and explain each line.",
    "A train leaves at 9:40 and arrives at 13:05, with a stop of 25 minutes. How long does it drive? Show your steps.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "List ten things to pack for a week of hiking in the mountains, with a reason for each.",
    "Translate into French: The meeting was moved to Thursday because the room is being painted.",
    "Summarise what photosynthesis does, first for a child, then for a biology student.",
    "Compare renting and buying a flat: three arguments for each, then a balanced conclusion.",
    "Write a polite e-mail asking a supplier why an order of 200 chairs is two weeks late.",
    "What is the difference between a process and a thread? Give an example in which it matters.",
    "Write a SQL query that finds the five customers with the highest total of orders in 2024, and explain it.",
    "Plan a vegetarian dinner for six guests: a starter, a main course and a dessert, with a shopping list.",
)
