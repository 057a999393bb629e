"""Makes training data and scores experts: `python -m corpus`, from the checkout.

Not in the wheel, and nothing of edgemem imports it. phrases -> conversation -> generator invent
conversations; readers -> annotated read what people annotated; teacher asks a larger model.
Examples go to files that `edgemem train run` reads. evaluate scores a set of experts.
"""
