"""Runs ministack as a cloud to deploy into: ``python run_ministack.py PYTHON FOLDER``.

PYTHON is the interpreter that Lambda functions run on; ministack itself would give them its own, on which the layers'
wheels do not load. FOLDER is where SAM's translator is found: that of the SAM command line, which transforms templates.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    sys.executable, folder = sys.argv[1:]
    del sys.path[0]  # this folder, which has a module of that name
    sys.path.append(folder)
    sys.argv = ["ministack"]
    from ministack.app import main

    main()
