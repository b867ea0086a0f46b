"""The modules import each other without a circle."""

from graphlib import TopologicalSorter

import grimp


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = grimp.build_graph("macroserve", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError, which names the modules
