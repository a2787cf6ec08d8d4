"""What templates have tried to get out of Jinja's sandbox, and to change what is not theirs.

From advisories (CVE-2014-0012 to CVE-2025-27516), Jinja's own tests and what people who attack
templates collect. Names are test ids.
"""

from __future__ import annotations

# They fail, or they get one of these: what Jinja writes for an attribute it does not give.
NOTHING = ("", "[Undefined]")

REFUSED = {
    # dunder attributes, in every way an attribute can be named
    "class": "{{ ''.__class__ }}",
    "class by item": "{{ ''['__class__'] }}",
    "class by escaped item": r"{{ ''['\x5f\x5fclass\x5f\x5f'] }}",
    "class by attr filter": "{{ ''|attr('__class__') }}",
    "class by joined name": "{{ ''|attr(['__', 'class', '__']|join) }}",
    "class by concatenated item": "{{ ''['__cla' ~ 'ss__'] }}",
    "class by reversed item": "{{ ''['__ssalc__'|reverse] }}",
    "class by map": "{{ ['']|map(attribute='__class__')|list }}",
    "class by dotted map": "{{ ['']|map(attribute='__class__.__mro__')|list }}",
    "class by mapped attr filter": "{{ ['']|map('attr', '__class__')|list }}",
    "class by sum": "{{ ['']|sum(attribute='__class__') }}",
    "class by groupby": "{{ ['', 'a']|groupby('__class__') }}",
    "class by getattribute": "{{ ''.__getattribute__('__class__') }}",
    "mro": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "bases": "{{ ().__class__.__bases__[0].__subclasses__() }}",
    "mro of a global type": "{{ dict.mro() }}",
    "subclasses of a global type": "{{ range.__subclasses__() }}",
    "base of a global type": "{{ dict.__base__ }}",
    "class of a message": "{{ messages[0].__class__ }}",
    "class of messages": "{{ messages.__class__ }}",
    "undefined": "{{ nothing.__init__.__globals__ }}",
    "undefined's class": "{{ nothing.__class__.__mro__ }}",
    # functions and what they know
    "globals of lipsum": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "globals of lipsum by attr": "{{ (lipsum|attr('__globals__'))['os'] }}",
    "func_globals of lipsum": "{{ lipsum.func_globals }}{{ lipsum.__code__ }}",
    "globals of cycler": "{{ cycler.__init__.__globals__.os.environ }}",
    "globals of joiner": "{{ joiner.__init__.__globals__ }}",
    "globals of namespace": "{{ namespace.__init__.__globals__ }}",
    "globals of raise_exception": "{{ raise_exception.__globals__ }}",
    "globals of strftime_now": "{{ strftime_now.__globals__ }}",
    "closure of strftime_now": "{{ strftime_now.__closure__ }}",
    "builtins": "{{ strftime_now.__builtins__ }}",
    "import": "{{ __import__('os').environ }}",
    "self of a method": "{{ ''.join.__self__ }}",
    "globals of a macro": "{% macro m() %}{% endmacro %}{{ m.__globals__ }}",
    "function of a macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "environment of a macro": "{% macro m() %}{% endmacro %}{{ m._environment }}",
    "caller": "{% macro m() %}{{ caller._func }}{% endmacro %}{% call m() %}{% endcall %}",
    "code of a generator": "{{ (messages|map('length')).gi_code }}",
    "frame of a generator": "{{ (messages|map('length')).gi_frame.f_globals }}",
    "frame of a generator by attr": "{{ (messages|select|attr('gi_frame')).f_builtins }}",
    # the template, its context and its loops
    "context of self": "{{ self._TemplateReference__context }}",
    "context of self by attr": "{{ self|attr('_TemplateReference__context') }}",
    "init of self": "{{ self.__init__.__globals__ }}",
    "class of loop": "{% for m in messages %}{{ loop.__class__ }}{% endfor %}",
    "iterator of loop": "{% for m in messages %}{{ loop._iterator }}{% endfor %}",
    "recursion of loop": "{% for m in messages %}{{ loop._recurse.__globals__ }}{% endfor %}",
    "init of loop by item": "{% for m in messages %}{{ loop['__init__'] }}{% endfor %}",
    "class of previtem": "{% for m in 'ab' %}{{ loop.nextitem.__class__ }}{% endfor %}",
    "class of a namespace": "{% set n = namespace(a='') %}{{ n.__class__ }}",
    "class in a namespace": "{% set n = namespace(a='') %}{{ n.a.__class__ }}",
    "attributes of a namespace": "{% set n = namespace(a='') %}{{ n._Namespace__attrs }}",
    "class of a namespace is set": "{% set n = namespace() %}{% set n.__class__ = 1 %}{{ n.a() }}",
    "loop is set": "{% for m in messages %}{% set loop.index = 3 %}{% endfor %}",
    "a message is set": "{% set m = messages[0] %}{% set m.role = 'x' %}",
    # str.format and its relatives (CVE-2016-10745, CVE-2019-10906, CVE-2024-56326, CVE-2025-27516)
    "format": "{{ '{0.__class__.__mro__}'.format('x') }}",
    "format with name": "{{ '{a.__class__}'.format(a='x') }}",
    "format of item": "{{ '{0[a].__class__}'.format({'a': 1}) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "format by item": "{{ ''['format'] and '{0.__class__}'['format'](1) }}",
    "format by attr": "{{ ('{0.__call__.__builtins__}'|attr('format'))(not_here) }}",
    "format_map by attr": "{{ ('{a.__class__}'|attr('format_map'))({'a': 1}) }}",
    "format by map": "{{ (['{0.__class__}']|map(attribute='format')|first)(1) }}",
    "format by mapped attr": "{{ (['{0.__class__}']|map('attr', 'format')|first)(1) }}",
    "format in a variable": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "format in a list": "{{ ['{0.__class__}'.format][0](1) }}",
    "format in a dict": "{{ {'f': '{0.__class__}'.format}.f(1) }}",
    "format in a namespace": "{{ namespace(f='{0.__class__}'.format).f(1) }}",
    "format set in a namespace": (
        "{% set n = namespace() %}{% set n.f = '{0.__class__}'.format %}{{ n.f(1) }}"
    ),
    "format_map in a namespace": "{{ namespace(f='{a.__class__}'.format_map).f({'a': 1}) }}",
    "format as a macro's argument": (
        "{% macro m(f) %}{{ f(1) }}{% endmacro %}{{ m('{0.__class__}'.format) }}"
    ),
    "format of previtem": (
        "{% for f in ['{0.__class__}'.format, 1] %}"
        "{% if loop.previtem %}{{ loop.previtem(1) }}{% endif %}{% endfor %}"
    ),
    "format of markup": "{{ ('{0.__class__}'|escape).format(1) }}",
    "format of safe markup": "{{ ('{0.__class__.__mro__}'|safe).format(1) }}",
    # what came with the request stays as it is
    "append": "{{ messages.append(1) }}",
    "insert": "{{ messages.insert(0, 1) }}",
    "extend": "{{ messages.extend([1]) }}",
    "list pop": "{{ messages.pop() }}",
    "list remove": "{{ messages.remove(messages[0]) }}",
    "list clear": "{{ messages.clear() }}",
    "list sort": "{{ messages.sort() }}",
    "list reverse": "{{ messages.reverse() }}",
    "append by attr": "{{ (messages|attr('append'))(1) }}",
    "append by item": "{{ messages['append'](1) }}",
    "append by map": "{{ ([messages]|map(attribute='append')|first)(1) }}",
    "append in a namespace": "{{ namespace(f=messages.append).f(1) }}",
    "dict update": "{{ messages[0].update({'role': 'x'}) }}",
    "dict update by attr": "{{ (messages[0]|attr('update'))({'role': 'x'}) }}",
    "dict pop": "{{ messages[0].pop('role') }}",
    "dict popitem": "{{ messages[0].popitem() }}",
    "dict setdefault": "{{ messages[0].setdefault('x', 1) }}",
    "dict clear": "{{ messages[0].clear() }}",
    "setitem": "{{ messages[0].__setitem__('role', 'x') }}",
    # files and other templates
    "include": "{% include '/etc/passwd' %}",
    "include a list": "{% include ['/etc/passwd', '/etc/hostname'] %}",
    "import a template": "{% import '/etc/passwd' as x %}",
    "from import": "{% from '/etc/passwd' import x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "open": "{{ open('/etc/passwd').read() }}",
    # extensions that are not there
    "do": "{% do messages.append(1) %}",
    "debug": "{% debug %}",
    # more than Jinja allows
    "range": "{{ range(100001)|length }}",
}

# These get something, and nothing they should not.
HARMLESS = {
    "selected by class": ("{{ ['']|selectattr('__class__')|list }}", "[]"),
    "undefined class": ("{{ ''.__class__ is defined }}", "False"),
    "an attribute of None": ("{{ none.__class__ is defined }}", "False"),
    "a dict's item of that name": ("{{ {'__class__': 1}['__class__'] }}", "1"),
    "format without attributes": ("{{ '{:>3}|{a}'.format(1, a=2) }}", "  1|2"),
    "sorted by class": ("{{ ['b', 'a']|sort(attribute='__class__') }}", "['b', 'a']"),
    "class as a width": ("{{ '{0:{1.__class__}}'.format('x', 'y') }}", "x"),
    "format of an unsafe name in a spec": ("{{ '{0:>3}'.format('x') }}", "  x"),
}

# Jinja guards the methods of a dict, and not those of `dict`; engines' templates may use them.
CHANGING = {
    "dict.update": "{{ dict.update(messages[0], {'role': 'x'}) }}",
    "dict.pop": "{{ dict.pop(messages[0], 'role') }}",
}
