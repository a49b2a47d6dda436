# A command, its worker, and the worker's grandchild in a session of its own. Each prints its role
# and pid, and none of them ends by SIGTERM.
trap '' TERM
echo "$1 $$"
case $1 in
command) bash "$0" worker & wait ;;
worker) setsid bash "$0" grandchild & wait ;;
grandchild) exec sleep 1000 ;;
esac
