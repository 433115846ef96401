"""``backburn train`` and ``backburn evaluate``."""
def add_train(commands, common): pass
def add_evaluate(commands, common): pass
