"""Makes werkzeug's server answer one request at a time: see lab/src/servers/objects.rs."""

import werkzeug.serving

_run_simple = werkzeug.serving.run_simple


def run_simple(*arguments, **options):
    options["threaded"] = False
    return _run_simple(*arguments, **options)


# moto.server imports the function by its name after this file has run.
werkzeug.serving.run_simple = run_simple
