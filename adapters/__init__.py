"""One package per framework, each a thin layer over `synther_replay`. Import it as ``synther_replay.adapters``.

The installation maps this folder into the package. An import as plain ``adapters`` raises ImportError, because all
classes would exist twice, which breaks pickle and `isinstance`.
"""

if __name__ != "synther_replay.adapters":
    raise ImportError(
        f"import 'synther_replay.adapters' instead of {__name__!r} (in a checkout, run `pip install -e .` first)"
    )
