"""Tables as a file declares them: ``apply`` makes a database what it says, ``plan`` says what that would change."""

from dolmen.declaration.plan import Change, Plan, apply, plan
from dolmen.declaration.reading import Declaration, DeclaredTable

__all__ = ["Change", "Declaration", "DeclaredTable", "Plan", "apply", "plan"]
