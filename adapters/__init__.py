"""One module per framework, each a thin layer over `synther_replay`; imported as ``synther_replay.adapters``.

The folder lies beside the package and is mapped into it when the project is installed. Imported as plain ``adapters``
its classes would exist twice under two names, which breaks pickles and `isinstance`, so that is refused.
"""

if __name__ != "synther_replay.adapters":
    raise ImportError(
        f"import 'synther_replay.adapters' instead of {__name__!r} (in a checkout, run `pip install -e .` first)"
    )
