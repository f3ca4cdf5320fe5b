"""What things are called: everyday words for emoji names, words to leave out, colours, counts, plurals."""

import re

# Skin tones, flags, keycaps, letters, clock times, and pictures of particular people.
LEAVE_OUT = re.compile(
    r"skin-tone|tone\d|flag|keycap|-medium|-light$|-dark$|medium-|regional|tag-|-hair$|-haired|beard|person-|^man-|-man-"
    r"|woman-|^men-|women-|people-|couple|family|kiss|oclock|-thirty|letter-|digit-|^\d|deaf-|pregnant|breast-|bald"
    r"|middle-finger|button$|-button|japanese-.*-button|blood-type|input-|hindu|kaaba|synagogue|mosque|shrine|menorah|khanda"
    r"|star-of-david|star-and-crescent|orthodox|wheel-of-dharma|^om$|place-of-worship|latin-cross|bikini|swimsuit|briefs"
    r"|cigarette|syringe|drop-of-blood|coffin|funeral|water-pistol|bomb|dagger|pile-of-poo|face-vomiting|on-exclamation"
    r"|up-exclamation|moai|map-of-japan|hamsa|nazar|diya|mx-claus|transgender|female-sign|male-sign"
)

# Too much like others, or nothing people ask for: a small model learns more from fewer things.
SELDOM = re.compile(
    r"chart|envelope-with|incoming|inbox|outbox|card-|file-|page-|bookmark-tabs|phone-with|phone-off|banknote|yen|mahjong"
    r"|playing-cards|speech|^bubbles|^anger|anger-bubble|dotted|^hole$|^zzz$|hundred|identification|placard|^label$|rolled-up|x-ray|petri|alembic"
    r"|abacus|slider|knobs|trackball|ledger|clipboard|heart-exclamation|heart-decoration|revolving|receipt|admission|ticket"
    r"|-suit$|locked-with|linked|level|disk|dvd|videocassette|pager|fax|film-frames|muted|speaker-low|bell-with-slash|low-battery"
    r"|antenna|tanabata|moon-viewing|wind-chime|carp-|pine-decoration|reminder|quarter-moon|gibbous|waning|waxing|new-moon-face"
    r"|cableway|tramway|monorail|suspension-rail|mountain-railway|light-rail|railway-track|motorway|fog|department-store"
    r"|convenience|love-hotel|post-office|hot-springs|barber|oden|dango|fish-cake|mate$|tamale|fondue|rice-cracker|sheaf"
    r"|face-with-diagonal|face-with-symbols|hand-over-mouth|holding-back|peeking|steam-from|spiral-eyes|head-bandage|thermometer-"
    r"|without-mouth|expressionless|unamused|confounded|persevering|pensive|anguished|hushed|downcast|sad-but|relieved|smirking"
    r"|^lying|shaking|head-shaking|saluting|dotted-line|exhaling|savoring|drooling|woozy|zipper|money-mouth|flushed|pleading"
    r"|goods|prayer|postal-horn|level|razor|hair-pick|thong|sari|safety-vest|lab-coat|martial|running-shirt|goggles"
    r"|biting|busts|bust-|selfie|speaking|footprints|writing-hand|mechanical|lungs|anatomical|microbe|worm|^fly$|cockroach|mosquito"
)

# Of the people and the symbols only these.
PEOPLE = set(
    "anatomical-heart baby boy girl man woman old-man old-woman brain bone ear eye eyes foot nose mouth tongue tooth leg"
    " astronaut cook detective farmer firefighter judge ninja pilot police-officer prince princess santa-claus mrs-claus"
    " scientist singer student teacher artist troll superhero supervillain mage fairy vampire zombie genie elf mermaid"
    " clapping-hands crossed-fingers flexed-biceps folded-hands footprints hand-with-fingers-splayed handshake heart-hands"
    " ok-hand raised-fist raised-hand thumbs-up thumbs-down victory-hand waving-hand writing-hand lungs nail-polish"
    " construction-worker guard skier snowboarder mechanical-arm mechanical-leg".split()
)
SYMBOLS = set(
    "atom-symbol black-circle black-large-square blue-circle blue-square brown-circle brown-square check-mark cross-mark"
    " down-arrow left-arrow right-arrow up-arrow dotted-six-pointed-star eight-pointed-star fleur-de-lis green-circle"
    " green-square heavy-dollar-sign infinity large-blue-diamond large-orange-diamond orange-circle orange-square"
    " peace-symbol plus minus multiply divide prohibited no-entry purple-circle purple-square radioactive biohazard"
    " recycling-symbol red-circle red-exclamation-mark red-question-mark red-square red-triangle-pointed-up red-triangle"
    " sparkle trident-emblem warning white-circle white-large-square yellow-circle yellow-square yin-yang wireless"
    " hollow-red-circle curly-loop".split()
)

# Everyday words. Left: the name in the emoji sets. Right: what people say.
SAY = """
automobile: car, red car, auto
oncoming-automobile: car, car from the front
sport-utility-vehicle: suv, jeep, family car, car
racing-car: race car, sports car, formula one car
pickup-truck: pickup, truck
delivery-truck: truck, lorry, van
articulated-lorry: big truck, semi truck, lorry
minibus: van, camper van
bus: coach, city bus
oncoming-bus: bus
taxi: cab, yellow car
oncoming-taxi: taxi
police-car: cop car
fire-engine: fire truck
motorcycle: motorbike, bike
motor-scooter: scooter, moped
kick-scooter: scooter
bicycle: bike, cycle
airplane: plane, aeroplane, jet, aircraft
small-airplane: plane, propeller plane, small plane
locomotive: steam train, train engine, train
high-speed-train: train, fast train
bullet-train: fast train, train
train: subway train, railway train
tram: streetcar
ship: boat, steamship
passenger-ship: cruise ship, ocean liner
sailboat: sailing boat, boat, yacht
motor-boat: boat
speedboat: motorboat, fast boat
canoe: rowing boat, kayak
flying-saucer: ufo, alien spaceship
rocket: spaceship, space rocket, rocket ship
ringed-planet: saturn, planet, planet with rings
globe-showing-americas: earth, globe, world, planet earth
globe-showing-europe-africa: earth, globe, world
globe-showing-asia-australia: earth, globe
full-moon: moon
crescent-moon: moon, half moon
full-moon-face: smiling moon, moon with a face
new-moon: dark moon
sun: sunshine, shining sun, yellow sun
sun-with-face: sun, smiling sun, happy sun
sun-behind-cloud: sun and cloud, partly cloudy sky
cloud-with-rain: rain, rain cloud, rainy weather
cloud-with-snow: snow cloud, snowy weather
cloud-with-lightning: thunderstorm, storm cloud
high-voltage: lightning bolt, lightning, flash
water-wave: wave, sea wave, ocean wave
droplet: drop of water, water drop, raindrop
fire: flame, campfire
snowflake: snow crystal, ice crystal
snowman: snow man
glowing-star: shining star, yellow star
star: yellow star, gold star
shooting-star: falling star
comet: meteor
milky-way: galaxy, night sky
mountain: hill, rocky mountain
snow-capped-mountain: snowy mountain, mountain with snow
mount-fuji: mountain, volcano with snow
desert-island: island with a palm tree, tropical island, island
beach-with-umbrella: beach, beach umbrella, parasol
house: home, cottage, small house
house-with-garden: house with a tree, home with a garden
houses: village, row of houses
derelict-house: old house, broken house, haunted house
hut: straw hut, cabin, wooden hut
office-building: office, skyscraper, tall building
classical-building: temple, museum
castle: fortress, palace, fairy tale castle
japanese-castle: pagoda, japanese palace
school: school building
church: chapel
hospital: clinic
bank: bank building
factory: industrial plant
tent: camping tent
camping: tent in the woods
circus-tent: circus
ferris-wheel: big wheel
carousel-horse: merry go round
bridge-at-night: bridge, suspension bridge
lighthouse: light tower
national-park: park, forest landscape
cityscape: city, town, skyline
night-with-stars: city at night, night sky
sunrise: sunrise over the sea
sunset: sundown over the city
fountain: water fountain
deciduous-tree: tree, oak tree, leafy tree
evergreen-tree: pine tree, fir tree, tree
palm-tree: coconut tree
christmas-tree: decorated tree, xmas tree
potted-plant: plant in a pot, house plant, flower pot
leafless-tree: bare tree, dead tree
cactus: desert plant
rose: red flower
tulip: pink flower
sunflower: yellow flower
hibiscus: tropical flower
cherry-blossom: pink blossom, flower
blossom: yellow blossom, flower, daisy
white-flower: flower
bouquet: bunch of flowers, flowers
wilted-flower: dead flower
maple-leaf: red leaf, autumn leaf
fallen-leaf: brown leaf, dry leaf
leaf-fluttering-in-wind: green leaf, leaves
four-leaf-clover: clover, lucky clover
seedling: sprout, young plant
mushroom: toadstool, red mushroom
brown-mushroom: mushroom, champignon
cat: kitty, kitten, house cat
cat-face: cat, kitty, kitten, cat head
black-cat: cat
grinning-cat: happy cat, smiling cat
grinning-cat-with-smiling-eyes: happy cat, laughing cat
cat-with-wry-smile: sly cat, smirking cat
smiling-cat-with-heart-eyes: cat in love
crying-cat: sad cat
weary-cat: tired cat, exhausted cat, shocked cat
pouting-cat: angry cat, grumpy cat
cat-with-tears-of-joy: laughing cat
dog: puppy, hound, doggy
dog-face: dog, puppy, dog head
guide-dog: dog, working dog
service-dog: dog with a vest
poodle: fluffy dog
horse: pony, galloping horse
horse-face: horse, horse head
cow-face: cow, cow head
cow: dairy cow
ox: bull
pig-face: pig, piggy, pig head
pig: hog, swine
mouse-face: mouse, mouse head
mouse: little mouse
rabbit-face: bunny, rabbit
rabbit: bunny, hare
hamster: guinea pig, gerbil
bear: bear head, brown bear
polar-bear: white bear
panda: panda bear
tiger-face: tiger, tiger head
lion: lion head, king of the jungle
monkey-face: monkey
monkey: ape
gorilla: big ape
fox: red fox, fox head
wolf: wolf head
frog: toad, frog face
chicken: hen
rooster: cock
baby-chick: chick, little bird, yellow chick
front-facing-baby-chick: chick
hatching-chick: chick in an egg
bird: songbird, little bird
eagle: hawk, bird of prey
dove: white bird, white dove
duck: mallard
parrot: colourful bird, colorful bird
swan: white swan
honeybee: bee, bumblebee
lady-beetle: ladybug, ladybird
beetle: bug
bug: caterpillar
ant: insect
butterfly: moth
snail: slug
fish: blue fish
tropical-fish: yellow fish, aquarium fish, fish
blowfish: pufferfish
whale: blue whale
spouting-whale: whale
shark: great white shark
octopus: squid
spiral-shell: seashell, shell
turtle: tortoise
crocodile: alligator
sauropod: dinosaur, long neck dinosaur, brontosaurus
t-rex: dinosaur, tyrannosaurus
dragon-face: dragon, dragon head
dragon: chinese dragon, green dragon
unicorn: unicorn head, magic horse
ewe: sheep, lamb
ram: sheep with horns
teddy-bear: teddy, stuffed bear, plush bear
red-apple: apple
green-apple: apple
tangerine: orange, mandarin, orange fruit, clementine
lemon: yellow lemon
grapes: bunch of grapes, purple grapes
watermelon: slice of watermelon, melon
cherries: cherry
peach: apricot
ear-of-corn: corn, maize, corn cob
eggplant: aubergine
hot-pepper: chili, chili pepper, red pepper
bell-pepper: green pepper, paprika
leafy-green: lettuce, salad leaf
tomato: red tomato
potato: spud
french-fries: fries, chips
hamburger: burger, cheeseburger
hot-dog: sausage in a bun
pizza: slice of pizza, pizza slice
bread: loaf of bread, toast
baguette-bread: baguette, french bread
croissant: pastry
cheese-wedge: cheese, piece of cheese
egg: eggs
cooking: fried egg, frying pan with an egg
pancakes: pancake stack
spaghetti: pasta, noodles
steaming-bowl: bowl of soup, ramen, noodle soup
bowl-with-spoon: cereal bowl, bowl
sushi: raw fish
birthday-cake: cake, cake with candles
shortcake: piece of cake, strawberry cake, slice of cake
cupcake: muffin
pie: cake
doughnut: donut
cookie: biscuit, chocolate cookie
chocolate-bar: chocolate
candy: sweet, bonbon
lollipop: lolly
soft-ice-cream: ice cream cone, ice cream
ice-cream: ice cream, sundae, bowl of ice cream
shaved-ice: ice dessert
hot-beverage: coffee, cup of coffee, cup of tea, mug, hot drink
teacup-without-handle: cup of tea, green tea, tea
teapot: tea pot
glass-of-milk: milk
beer-mug: beer, glass of beer, pint
clinking-beer-mugs: beers
wine-glass: glass of wine, red wine, wine
cocktail-glass: martini, cocktail, drink
tropical-drink: cocktail, juice
cup-with-straw: soda, soft drink, milkshake
bubble-tea: boba
baby-bottle: milk bottle
bottle-with-popping-cork: champagne, champagne bottle, bottle
sake: sake bottle, bottle and cup
lotion-bottle: bottle, shampoo bottle, bottle of lotion
honey-pot: jar of honey, honey
jar: glass jar
fork-and-knife: cutlery, knife and fork
fork-and-knife-with-plate: plate, dinner plate
kitchen-knife: knife, chef knife
spoon: table spoon
hammer: tool
wrench: spanner
screwdriver: tool
carpentry-saw: saw, hand saw
axe: hatchet
nut-and-bolt: screw
gear: cog, cogwheel
toolbox: tool case
scissors: pair of scissors
key: gold key, door key
old-key: antique key, key
locked: lock, padlock
unlocked: open lock
crossed-swords: swords, two swords
sword: blade
shield: knight shield
bow-and-arrow: bow, archery
crown: king crown, golden crown
gem-stone: diamond, gem, jewel
ring: diamond ring, wedding ring
money-bag: bag of money, sack of gold
coin: gold coin
dollar-banknote: money, cash, dollar bill
trophy: golden cup, winner cup
1st-place-medal: gold medal
sports-medal: medal
wrapped-gift: present, gift, gift box, birthday present
balloon: red balloon
party-popper: confetti
books: stack of books, pile of books
blue-book: book
green-book: book
orange-book: book
closed-book: red book, book
open-book: book, opened book
notebook: exercise book
notebook-with-decorative-cover: notebook
pencil: yellow pencil
pen: ballpoint pen
fountain-pen: ink pen
crayon: wax crayon
paintbrush: brush
artist-palette: paint palette, palette, paint
envelope: letter, mail
package: box, cardboard box, parcel
postbox: mailbox, letter box
telephone: phone, old phone
telephone-receiver: phone receiver, handset
mobile-phone: smartphone, cell phone, phone
laptop: notebook computer, computer
desktop-computer: computer, monitor, screen
computer-mouse: mouse for a computer
keyboard: computer keyboard
television: tv, tv set
radio: radio set
camera: photo camera
video-camera: camcorder
movie-camera: film camera
light-bulb: lamp, lightbulb, bulb
flashlight: torch
candle: burning candle
red-paper-lantern: lantern
magnifying-glass-tilted-left: magnifying glass, magnifier
magnifying-glass-tilted-right: magnifying glass
guitar: electric guitar, acoustic guitar
violin: fiddle, cello
musical-keyboard: piano, piano keys
trumpet: brass horn
saxophone: sax
drum: drums, snare drum
microphone: mic
headphone: headphones
musical-note: note, music
bell: golden bell
alarm-clock: clock
mantelpiece-clock: clock
watch: wristwatch
hourglass-done: hourglass, sand clock
hourglass-not-done: hourglass
t-shirt: shirt, tee shirt
womans-clothes: blouse, top
dress: gown, red dress
jeans: trousers, pants
shorts: short pants
coat: jacket
scarf: red scarf
gloves: mittens
socks: sock
running-shoe: sneaker, shoe, trainers
mans-shoe: leather shoe, shoe
high-heeled-shoe: high heels
womans-boot: boot
hiking-boot: boot
womans-hat: hat, sun hat
top-hat: hat, black hat
billed-cap: baseball cap, cap
backpack: rucksack, school bag
handbag: purse, bag
shopping-bags: shopping bag
briefcase: business bag
luggage: suitcase
glasses: eyeglasses, spectacles
sunglasses: dark glasses
umbrella: open umbrella, purple umbrella
umbrella-with-rain-drops: umbrella in the rain
closed-umbrella: folded umbrella
bed: bedroom
couch-and-lamp: sofa, couch, sofa and lamp
chair: seat
seat: chair
door: wooden door
window: house window
toilet: wc
bathtub: bath, bath tub
shower: shower head
broom: broomstick
bucket: pail
basket: wicker basket
soap: bar of soap
soccer-ball: football, ball
basketball: ball
baseball: ball
tennis: tennis ball, tennis racket
volleyball: ball
american-football: football
bullseye: target, dart board
game-die: dice, die
joystick: game stick
video-game: game controller, gamepad
puzzle-piece: puzzle, jigsaw
chess-pawn: chess piece, pawn
kite: flying kite
skateboard: skate board
ice-skate: ice skates
roller-skate: roller skates
fishing-pole: fishing rod
boxing-glove: boxing gloves
robot: robot head, android
alien: alien head, extraterrestrial
alien-monster: space invader, monster
ghost: spook, halloween ghost
skull: skeleton head, death head
jack-o-lantern: pumpkin, halloween pumpkin, carved pumpkin
clown-face: clown
ogre: red demon
goblin: red goblin
santa-claus: santa, father christmas
police-officer: policeman, cop
astronaut: spaceman
baby: infant
boy: young boy
girl: young girl
man: guy
woman: lady
old-man: grandfather, grandpa
old-woman: grandmother, grandma
mage: wizard
princess: girl with a crown
prince: boy with a crown
red-heart: heart, love
blue-heart: heart
green-heart: heart
yellow-heart: heart
purple-heart: heart
black-heart: heart
orange-heart: heart
broken-heart: heartbreak
two-hearts: hearts
sparkles: stars, glitter
collision: explosion, boom
eye: eyeball
brain: human brain
tooth: white tooth
bone: dog bone
thumbs-up: like, thumb up
raised-fist: fist
waving-hand: hand, hello
raised-hand: hand
flexed-biceps: muscle, strong arm
grinning-face: smiley, happy face, smile
grinning-face-with-big-eyes: happy smiley
smiling-face: smiling smiley
slightly-smiling-face: smile, smiley face
smiling-face-with-sunglasses: cool face, cool smiley, smiley with sunglasses
smiling-face-with-heart-eyes: face in love, smiley in love
winking-face: wink, winking smiley
crying-face: sad face, crying smiley
loudly-crying-face: crying face, tears
angry-face: mad face, angry smiley
pouting-face: red angry face
sleeping-face: sleepy smiley, sleeping smiley
face-with-tears-of-joy: laughing face, laughing smiley
thinking-face: thinking smiley
frowning-face: sad face, sad smiley
smiling-face-with-horns: devil, purple devil
smiling-face-with-halo: angel face
cowboy-hat-face: cowboy
partying-face: party face
nerd-face: face with glasses
face-with-medical-mask: face with mask
cold-face: freezing face
hot-face: sweating face
exploding-head: mind blown
warning: warning sign
stop-sign: stop
fuel-pump: gas pump, petrol pump
anchor: ship anchor
compass: navigation
world-map: map
telescope: spyglass
microscope: lab microscope
test-tube: chemistry tube
satellite: space satellite
battery: green battery
electric-plug: plug
magnet: horseshoe magnet
thermometer: fever thermometer
pill: medicine, capsule
stethoscope: doctor tool
ladder: step ladder
brick: bricks, wall
wood: log, logs, wooden log
rock: stone, boulder
basketball: basket ball
crystal-ball: magic ball
magic-wand: wand, wizard wand
treasure-chest: chest of gold, pirate chest
harp: string instrument
shovel: spade
trombone: brass instrument
feather: quill
wing: angel wing
nest-with-eggs: bird nest
coral: coral reef
jellyfish: medusa
knot: rope
sewing-needle: needle
yarn: ball of wool
thread: spool
ice: ice cube
salt: salt shaker
butter: piece of butter
bacon: strips of bacon
cut-of-meat: steak, meat
poultry-leg: chicken leg, drumstick
meat-on-bone: roast meat
sandwich: toast sandwich
taco: mexican taco
popcorn: box of popcorn
avocado: avocado half
kiwi-fruit: kiwi
mango: exotic fruit
coconut: coconut half
olive: olives
onion: brown onion
garlic: garlic bulb
carrot: orange carrot
broccoli: green vegetable
cucumber: pickle
strawberry: red berry
blueberries: blueberry, berries
pineapple: ananas
pear: green pear
banana: bananas
"""

SYNONYMS = {}
for line in SAY.strip().splitlines():
    name, words = line.split(":", 1)
    SYNONYMS.setdefault(name.strip(), []).extend(w.strip() for w in words.split(",") if w.strip())

# Keywords of emojilib that say nothing about what is to be seen.
VAGUE = set(
    "food drink animal nature face object symbol people place travel sport sports fun happy love cute cool nice good bad"
    " weather vehicle transportation building home work business school fruit vegetable color colour shape art day night"
    " summer winter spring fall autumn time sign body human person party japanese american usa chinese mexican italian"
    " dinner breakfast lunch meal snack eat hungry delicious yum yummy tasty play game games win winner health medical"
    " money buy sell shop fashion style clothing clothes beauty girl boy man woman female male old new big small red blue"
    " green yellow orange purple pink black white brown gray grey music instrument sound computer technology internet"
    " education science write read paper tool tools house room bathroom kitchen furniture holiday celebration celebrate"
    " christmas halloween birthday gift wedding romance romantic luck lucky magic fantasy fairy tale myth creature monster"
    " wild zoo farm pet ocean sea beach water fire air earth space sky cold hot warm ice cooking bar diet healthy weapon"
    " danger dangerous death dead scary evil war fight military law crime security safety sad angry mad upset tired sick"
    " emotion feeling thinking funny silly weird crazy joke lol haha omg wow dude bro".split()
)

COLOURS = ["red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white", "gray"]
# Grounds that words of a place ask for (none: white), and those words.
SCENES = [
    ((178, 220, 255), ["in the sky", "in a blue sky", "up in the air", "above the clouds"]),
    ((24, 28, 60), ["at night", "in the dark", "under the night sky", "in space"]),
    ((165, 222, 238), ["in the sea", "in the ocean", "under water", "by the sea", "in the water", "in a lake"]),
    ((140, 200, 110), ["in the grass", "on a meadow", "in the garden", "in a green field", "in the forest"]),
    ((240, 215, 150), ["in the desert", "on the beach", "in the sand"]),
    (None, ["in the snow", "on a table", "on a plate", "on a hill", "in a room", "in the rain", "in the house", "on the street", "in a pot"]),
]
# What comes with a thing, and what it does: the picture is that of the thing alone. "*" is any colour.
PARTS = [
    "a hat", "a * hat", "a scarf", "a * scarf", "a * door", "* eyes", "big eyes", "big ears", "a long tail", "a long neck", "* spots",
    "* dots", "* stripes", "* wheels", "* windows", "wings", "a smile", "a handle", "leaves", "a bow", "a * ribbon", "a * top",
]  # fmt: skip
DOING = ["sitting", "running", "flying", "sleeping", "jumping", "standing", "smiling", "dancing", "swimming", "waiting", "shining"]
COUNTS = {2: "two", 3: "three", 4: "four"}
NO_ARTICLE = re.compile(
    r"^(bread|cheese|fire|rain|money|grapes|cherries|fries|chips|jeans|glasses|sunglasses|headphones|scissors|books|stars"
    r"|spaghetti|pasta|milk|honey|water|bacon|butter|rice|corn|sushi|broccoli|garlic|popcorn|coffee|tea|beer|wine|sparkles"
    r"|confetti|fireworks|pancakes|blueberries|peanuts|beans|socks|shorts|trousers|pants|gloves|trainers|saturn|earth|santa"
    r"|father christmas|lightning|snow|mail|cash|cutlery|mittens|logs|bricks|olives|bananas|chopsticks|skis)$"
)
IRREGULAR = {
    "mouse": "mice", "goose": "geese", "fish": "fish", "sheep": "sheep", "deer": "deer", "knife": "knives",
    "leaf": "leaves", "wolf": "wolves", "tooth": "teeth", "foot": "feet", "man": "men", "woman": "women",
    "loaf": "loaves", "scarf": "scarves", "person": "people", "ox": "oxen", "bison": "bison", "cactus": "cacti",
}  # fmt: skip


def plural(word: str) -> str:
    """The plural of the last word of a name; names of the form "glass of milk" change their first word."""
    if " of " in word:
        head, tail = word.split(" of ", 1)
        return f"{plural(head)} of {tail}"
    *front, last = word.split(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith(("s", "x", "ch", "sh")):
        last = last if last.endswith("s") and not last.endswith("ss") and last not in ("bus", "octopus") else last + "es"
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        last = last[:-1] + "ies"
    elif last in ("potato", "tomato", "mango"):
        last += "es"
    else:
        last += "s"
    return " ".join([*front, last])


def article(phrase: str) -> str:
    """The phrase with "a" or "an" where one belongs."""
    first, last = phrase.split(" ")[0], phrase.split(" ")[-1]
    many = last.endswith("s") and not last.endswith(("ss", "us", "is")) and " of " not in phrase and " with " not in phrase
    if many or NO_ARTICLE.match(phrase) or first in ("two", "three", "four", "half"):
        return phrase
    an = first[0] in "aeiou" and not first.startswith(("uni", "euro", "one", "ufo")) or first in ("hour", "hourglass")
    return ("an " if an else "a ") + phrase
