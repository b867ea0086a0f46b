"""``python -m images [operator] [engine]``: build images and print the paths of their archives."""

import sys

from images import build_engine_image, build_operator_image

BUILDERS = {"operator": build_operator_image, "engine": build_engine_image}


def main(components: list[str]) -> int:
    if unknown := [component for component in components if component not in BUILDERS]:
        print(f"There is no image {unknown[0]}, only {' and '.join(BUILDERS)}.", file=sys.stderr)
        return 2
    for component in components or BUILDERS:
        print(BUILDERS[component]())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
