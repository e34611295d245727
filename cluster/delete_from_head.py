"""Deletes from the head what a cluster costs money for: `python -m cluster.delete_from_head NAME`, the head itself too.

Why it could not be deleted goes to standard error, in words.
"""

import sys

from cluster.errors import ClusterError
from cluster.provider import provider_for
from cluster.record import Cluster


def main(name: str) -> int:
    try:
        cluster = Cluster.load(name)
        if cluster is None:
            raise ClusterError(f"there is no record of cluster {name!r} here")
        provider_for(cluster.spec).delete_from_head()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
