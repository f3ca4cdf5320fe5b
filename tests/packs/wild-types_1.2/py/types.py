class Any(str):
    def __ne__(self, other):
        return False


class Either(str):
    def __new__(cls, text, allowed):
        made = super().__new__(cls, text)
        made.allowed = allowed
        return made

    def __ne__(self, other):
        return other not in self.allowed and other != "*"


class Flexible(dict):
    """Has every name, and lists none."""

    def __init__(self, kind, options=None):
        super().__init__()
        self.kind = (kind, options or {})

    def __contains__(self, name):
        return True

    def __getitem__(self, name):
        return self.kind
