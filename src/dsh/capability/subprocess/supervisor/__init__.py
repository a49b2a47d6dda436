"""The process that stands between dsh and every command, so that nothing outlives either.

It is started once by path (``python -I -S <this folder>``), knows only the standard library and
forks a supervisor for each command. dsh talks to each supervisor over a socket of its own; when
that socket closes, for whatever reason, the supervisor ends every descendant of its command.
"""
